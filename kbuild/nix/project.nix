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

  files = map util.normalise;
  sections = map (
    id:
    toml.kernel.${id}
    // {
      inherit id;
      src = files toml.kernel.${id}.src;
      include = toml.kernel.${id}.include or [ ];
      cxx-flags = toml.kernel.${id}.cxx-flags or [ ];
      cuda-flags = toml.kernel.${id}.cuda-flags or [ ];
    }
  ) (builtins.attrNames (toml.kernel or { }));

  torch = if framework ? torch then framework.torch // { src = files framework.torch.src; } else null;

  # What a unit may include: every file that build.toml lists, wherever it lists it, by its base name.
  listed = util.unique ((torch.src or [ ]) ++ builtins.concatMap (s: s.src) sections);
  byName = builtins.groupBy baseNameOf listed;

  # For each listed file the listed files that it may include: those whose base name stands in an include, taken
  # without looking at folders or conditions. One that includes a macro may include any of them.
  mentions = util.genAttrs listed (
    file:
    let
      text = builtins.readFile (path + "/${file}");
      matches = regex: builtins.filter builtins.isList (builtins.split regex text);
      names = map builtins.head (matches "include[ \t]*[(]?[ \t]*[<\"]([^>\"\n]*)[>\"]");
    in
    if matches "#[ \t]*include[ \t]+[A-Za-z_]" != [ ] then
      listed
    else
      builtins.concatMap (name: byName.${baseNameOf name} or [ ]) names
  );

  # The files that compiling this one needs, itself among them.
  visibleTo =
    file:
    map (node: node.key) (
      builtins.genericClosure {
        startSet = [ { key = file; } ];
        operator = node: map (key: { inherit key; }) mentions.${node.key};
      }
    );

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
    sourceTree
    visibleTo
    pythonName
    packageFiles
    ;
  units = src: builtins.filter (file: !isHeader file) src;
}
