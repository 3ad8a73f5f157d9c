"""The explorer: schedules of a policy's rounds, searched for one in which the ranks of a group part.

policies (the rules as data) → space (which schedules there are) → search (all of them at once, in torch: kernels) →
shrink (the smallest that still breaks) → trace (its recordings). rules steps one schedule with real lists: the model
that the kernels are held against, and what tells a counterexample.
"""
