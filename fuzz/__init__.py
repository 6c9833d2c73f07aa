"""Fuzzing: bytes that nobody would write, for every place where the product reads what others wrote.

``python -m fuzz`` runs every target; CONTRIBUTING.md says how, and what to do with a finding.
A Python target is a module of ``fuzz/targets`` with a function ``check(data)``: it returns, or it has found something.
A C target is a file of ``fuzz/native`` with libFuzzer's entry function.
"""
