"""The command line: a package for each group of `agentmemory --help`, a module for each verb or family of verbs.

A module named `*_view` says how a verb shows what it found. What several groups share lies here, and `servers`, the
verbs that run something.
"""
