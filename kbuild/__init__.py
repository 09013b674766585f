"""kbuild: build, verify and publish PyTorch kernels, one command each."""

__version__ = "0.1.0"
