"""The rewrite core: patterns, rules, the e-graph, extraction, explanations.

It knows ops, types and normal forms, but nothing of attention.
"""
