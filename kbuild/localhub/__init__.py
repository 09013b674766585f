"""A Hub on loopback: the real clients publish to it and load from it, in tests and in the demo.

It speaks as much of the Hub's HTTP interface as `huggingface_hub` (1.x and 2.x) and `kernels` use: model and
kernel repositories, commits, branches, tags, pull requests, LFS. What it has acknowledged survives a kill.
"""
