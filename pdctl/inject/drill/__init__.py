"""Drills: steady state, fault, judge, heal, judge again; a verdict, and a journal that can be judged again."""
