# What the Nix side needs of build.toml: sections, and the files each translation unit sees.
# `kbuild check` has the friendly messages; what is thrown here is for those who call the flake by hand.
{ util, ... }:
path:
let
  toml = builtins.fromTOML (builtins.readFile (path + "/build.toml"));
  inherit (toml) general;
  framework =
    if toml ? torch-noarch then
      { noarch = toml.torch-noarch; }
    else if toml ? torch then
      { inherit (toml) torch; }
    else
      throw "kbuild: build.toml has neither [torch] nor [torch-noarch]; the flake builds these two frameworks";

  # As in kbuild/sources/files.py: what has none of these suffixes is there to be included.
  compiledSuffixes = [ ".c" ".cc" ".cpp" ".cxx" ".cu" ];
  isHeader = file: !(builtins.any (suffix: util.hasSuffix suffix file) compiledSuffixes);

  sections = map (
    id:
    toml.kernel.${id}
    // {
      inherit id;
      include = toml.kernel.${id}.include or [ ];
      cxx-flags = toml.kernel.${id}.cxx-flags or [ ];
      cuda-flags = toml.kernel.${id}.cuda-flags or [ ];
    }
  ) (builtins.attrNames (toml.kernel or { }));

  torch = framework.torch or null;
  torchHeaders = builtins.filter isHeader (torch.src or [ ]);
  kernelHeaders = builtins.filter isHeader (builtins.concatMap (s: s.src) sections);

  # A folder with just these files, so that an edit elsewhere changes no hash.
  sourceTree =
    name: files:
    let
      wanted = util.genAttrs files (_: true);
      root = toString path;
      skip = builtins.stringLength root + 1;
      relative = file: builtins.substring skip (builtins.stringLength file) file;
      prefixes = builtins.concatMap parents files;
      parents =
        file:
        let
          parent = util.dirOf' file;
        in
        if parent == "." then [ ] else [ parent ] ++ parents parent;
      folders = util.genAttrs prefixes (_: true);
    in
    builtins.path {
      inherit name path;
      filter =
        file: type: if type == "directory" then folders ? ${relative file} else wanted ? ${relative file};
    };

  # Files of the same build that this one includes although they are no headers, such as a shared .cu.
  alsoIncluded =
    file: candidates:
    let
      text = builtins.readFile (path + "/${file}");
    in
    builtins.filter (c: c != file && util.hasInfix (baseNameOf c) text) candidates;

  pythonName = builtins.replaceStrings [ "-" ] [ "_" ] general.name;

  # Every file below torch-ext/<package>, as paths relative to the project.
  filesBelow =
    folder:
    builtins.concatMap (
      entry:
      let
        relative = "${folder}/${entry}";
        type = (builtins.readDir (path + "/${folder}")).${entry};
      in
      if entry == "__pycache__" then
        [ ]
      else if type == "directory" then
        filesBelow relative
      else
        [ relative ]
    ) (builtins.attrNames (builtins.readDir (path + "/${folder}")));
  packageFiles = filesBelow "torch-ext/${pythonName}";
in
{
  inherit
    path
    toml
    general
    framework
    sections
    torch
    isHeader
    torchHeaders
    kernelHeaders
    sourceTree
    alsoIncluded
    pythonName
    packageFiles
    ;
  units = src: builtins.filter (file: !isHeader file) src;
}
