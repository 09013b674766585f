# One translation unit -> one object file, one derivation.
#
# Only what the unit can see is an input: its own text, the listed files that it includes, and the PyTorch and CUDA
# headers of its row where its section asks for them. A unit whose section does not depend on torch therefore has
# the same hash, and is compiled once, for every PyTorch release.
{
  host,
  step,
  tree,
  toolkit,
  matrix,
  util,
  ...
}:
{
  project,
  row,
  unit,
  # null for the files of [torch], else the [kernel.*] section
  section,
  # { token; atLink; } from variant.nix
  namespace,
}:
let
  isBinding = section == null;
  usesTorch = isBinding || builtins.elem "torch" section.depends;
  includes = if isBinding then project.torch.include or [ ] else section.include;
  unsupported = builtins.filter (d: d != "torch") (if isBinding then [ ] else section.depends);
  cuda = if row.backend == "cuda" then toolkit row.compute else null;
in
if unsupported != [ ] then
  throw "kbuild: [kernel.${section.id}] depends on ${builtins.concatStringsSep ", " unsupported}, which this builder has no source for"
else
  step {
    name = "${util.safeName unit}.o";
    step = ./steps/compile.py;
    inputs = {
      source = project.sourceTree "source" (project.visibleTo unit);
      inherit unit includes;
      flags =
        if isBinding then project.torch.cxx-flags or [ ] else section.cxx-flags;
      cuda_flags = if isBinding then [ ] else section.cuda-flags;
      defines = [
        "${if row.backend == "cuda" then "CUDA_KERNEL" else "CPU_KERNEL"}"
      ]
      ++ (
        if !usesTorch then
          [ ]
        else
          [ "TORCH_EXTENSION_NAME=${namespace.token}" ]
          ++ (if namespace.atLink then [ "KBUILD_NAMESPACE_AT_LINK" ] else [ ])
      );
      # What PyTorch's own headers are written in; a project's -std= flag goes before it.
      cxx_standard = if usesTorch then matrix.torch.${row.torch}.cxx_standard else "c++17";
      stable_abi = if usesTorch then row.stable else null;
      torch = if usesTorch then "${tree matrix.torch.${row.torch}.tree}" else null;
      registration = if usesTorch then "${./registration}" else null;
      toolkit = if cuda == null then null else "${cuda.root}";
      capabilities =
        if cuda == null then
          [ ]
        else if isBinding then
          builtins.concatLists (builtins.attrValues row.capabilities)
        else
          row.capabilities.${section.id};
    };
  }
