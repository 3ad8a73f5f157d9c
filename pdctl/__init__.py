"""pdctl: diagnose and break SGLang prefill/decode disaggregation, on purpose and for a while."""

__version__ = "0.1.0"
