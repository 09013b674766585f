# The outputs of a kernel project's flake, under the names that the public kernel-builder's flake gives them.
{
  host,
  system,
  project,
  rows,
  variant,
  bundle,
  tree,
  toolkit,
  matrix,
  ...
}:
{
  path,
  self ? null,
  # Arguments of the public builder that have no counterpart here; accepted so that existing flakes evaluate.
  rev ? null,
  doGetKernelCheck ? true,
  pythonCheckInputs ? _: [ ],
  pythonNativeCheckInputs ? _: [ ],
  torchVersions ? x: x,
}:
let
  kernel = project path;
  variants = builtins.listToAttrs (
    map (row: {
      name = row.variant;
      value = variant kernel row;
    }) kernelRows
  );
  kernelRows = rows kernel;
  names = map (row: row.variant) kernelRows;
  all = bundle kernel variants;

  script =
    name: text:
    derivation {
      inherit name system text;
      builder = "/bin/sh";
      passAsFile = [ "text" ];
      PATH = host.path;
      args = [
        "-c"
        ''mkdir -p "$out/bin" && { echo "#!${host.shell}"; cat "$textPath"; } > "$out/bin/${name}" && chmod +x "$out/bin/${name}"''
      ];
    }
    // {
      meta.mainProgram = name;
    };

  # `nix develop`: the toolkit on the PATH, PyTorch's and CUDA's headers where compilers and editors look for them.
  compiledRows = builtins.filter (row: row.torch != null) kernelRows;
  shell =
    let
      newest = builtins.head (
        builtins.sort (
          a: b:
          if a.backend != b.backend then a.backend == "cuda" else builtins.compareVersions a.torch b.torch > 0
        ) compiledRows
      );
      headers = "${tree matrix.torch.${newest.torch}.tree}/include";
      cuda = if newest.backend == "cuda" then "${(toolkit newest.compute).root}" else null;
    in
    derivation (
      {
        name = "kernel-shell";
        inherit system;
        # Named, because what `nix develop` runs in place of the builder looks for the variable.
        outputs = [ "out" ];
        builder = "/bin/bash";
        args = [
          "-c"
          "export > $out"
        ];
        PATH = if cuda == null then host.path else "${cuda}/bin:${host.path}";
        CPATH = builtins.concatStringsSep ":" (
          [
            headers
            "${headers}/torch/csrc/api/include"
          ]
          ++ (if cuda == null then [ ] else [ "${cuda}/include" ])
        );
      }
      // (if cuda == null then { } else { CUDA_HOME = cuda; })
    );
in
{
  packages.${system} = {
    default = all;
    bundle = all;
    redistributable = variants;
    variants = names;
    build-and-copy = script "build-and-copy" ''
      set -eu
      mkdir -p build
      for variant in ${all}/*; do
        name=$(basename "$variant")
        rm -rf "build/.$name.new"
        cp -r "$variant" "build/.$name.new"
        chmod -R u+w "build/.$name.new"
        rm -rf "build/$name"
        mv "build/.$name.new" "build/$name"
      done
    '';
  };
  devShells.${system} =
    if compiledRows == [ ] then
      { }
    else
      {
        default = shell;
        test = shell;
      };
}
