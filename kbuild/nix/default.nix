# The table of contents: what the flake offers, and the functions behind it, one per file.
#
# package: the folder of the kbuild package, whose data/ and single modules the build uses.
# session: what the command line knows and a pure evaluation cannot: the host's compiler and the project's
#          provenance. kbuild writes it beside the flake that it evaluates.
{
  package,
  session ? { },
}:
let
  readJSON = path: builtins.fromJSON (builtins.readFile path);
  scope = {
    inherit package;
    system = "x86_64-linux";
    matrix = readJSON (package + "/data/matrix.json");
    archs = readJSON (package + "/data/cuda_archs.json");
    lock = readJSON (package + "/data/toolchain.lock.json");
    provenance = session.provenance or null;
    host =
      session.host or (throw ''
        kbuild: no host compiler is known to this evaluation.
        Build with `kbuild build`, which finds the compiler of this machine and passes it on.
      '');

    util = import ./util.nix;
    step = import ./step.nix scope;
    tree = import ./tree.nix scope;
    toolkit = import ./toolkit.nix scope;
    stubs = import ./stubs.nix scope;
    project = import ./project.nix scope;
    rows = import ./rows.nix scope;
    compile = import ./compile.nix scope;
    link = import ./link.nix scope;
    variant = import ./variant.nix scope;
    bundle = import ./bundle.nix scope;
    genKernelFlakeOutputs = import ./gen-kernel-flake-outputs.nix scope;
  };
in
{
  lib = { inherit (scope) genKernelFlakeOutputs; };
}
