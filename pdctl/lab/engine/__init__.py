"""The engine of the lab: SGLang's disaggregation machinery in small, without a model.

Names of modules, functions and queues are those of ``sglang/srt/disaggregation`` (read in 0.5.13.post1 and, for what
was fixed since, 0.5.10.post1 and 0.5.12.post1), because pdctl hooks both through the same seams. The code is the
lab's own.
"""
