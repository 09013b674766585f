# Link stubs: libraries with a soname, exported symbols and no code.
{
  package,
  step,
  ...
}:
let
  data = name: "${package + "/data/abi/${name}"}";
in
{
  # PyTorch's libraries as one release exports them.
  torch =
    release:
    step {
      name = "torch-${release}-stubs";
      step = ./steps/make_stubs.py;
      inputs.symbols = data "torch-${release}.symbols.xz";
    };

  # glibc 2.28, libstdc++ up to GLIBCXX_3.4.24 / CXXABI_1.3.11, the libgomp that comes with PyTorch, and the few
  # functions that newer headers call in place of older ones: what links against these runs on every manylinux_2_28
  # system.
  runtime = step {
    name = "manylinux_2_28-stubs";
    step = ./steps/make_runtime.py;
    modules = [ ./steps/make_stubs.py ];
    inputs = {
      symbols = data "glibc-2.28.symbols.xz";
      compat = "${./steps/compat.c}";
      ceilings = {
        GLIBCXX = "3.4.24";
        CXXABI = "1.3.11";
        GOMP = "5.0";
        OMP = "5.0";
      };
    };
  };
}
