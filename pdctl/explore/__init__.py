"""The explorer: search schedules of a policy's rounds for one in which the ranks of a group diverge ("part").

policies (the rules as data) → space (all schedules) → search (many schedules at once, in torch: kernels) → shrink (the smallest
that still diverges) → recordings (of that schedule). rules steps one schedule with real lists: tests compare the kernels with
it, and counterexamples are told by it.
"""
