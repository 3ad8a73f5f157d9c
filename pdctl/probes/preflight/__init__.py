"""Whether a prefill/decode deployment is fit for traffic, before a router sends any.

Ranks (:mod:`.collect`), HTTP servers (:mod:`.servers`) and saved settings (:mod:`.files`) give the same evidence to one judge.
"""
