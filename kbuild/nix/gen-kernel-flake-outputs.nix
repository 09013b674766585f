# The outputs of a kernel project's flake, under the names that the public kernel-builder's flake gives them.
{
  host,
  system,
  project,
  rows,
  variant,
  bundle,
  util,
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
    }) (rows kernel)
  );
  names = map (row: row.variant) (rows kernel);
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

  shell = derivation {
    name = "${kernel.general.name}-shell";
    inherit system;
    builder = host.shell;
    PATH = host.path;
    args = [
      "-c"
      "export > $out"
    ];
  };
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
  devShells.${system} = {
    default = shell;
    test = shell;
  };
}
