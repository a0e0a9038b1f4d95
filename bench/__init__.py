"""Benchmarks of the product against the bare engine and other baselines; `python -m bench` runs the main one."""
