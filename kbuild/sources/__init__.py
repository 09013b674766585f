"""Reading the author's C++, CUDA and Python files without compiling or importing them."""
