# A row of a project -> the folder that goes into build/<variant>/.
{
  host,
  package,
  provenance,
  step,
  compile,
  link,
  util,
  ...
}:
project: row:
let
  inherit (project) general pythonName;
  noarch = row.compute == null;
  sections = builtins.filter (
    s: s.backend == row.backend && (row.backend != "cuda" || row.capabilities ? ${s.id})
  ) project.sections;

  compiled = project.torch.src or [ ] ++ builtins.concatMap (s: s.src) sections;
  packageFiles = project.packageFiles;

  # The op namespace, and with it the module's name, changes when anything does that the variant is made of: two builds
  # that differ can live in one process. NB: kbuild/freshness.py makes the same digest of the sources as they are now.
  digest = builtins.substring 0 12 (
    builtins.hashString "sha256" (
      builtins.toJSON [
        row.variant
        (builtins.hashFile "sha256" (project.path + "/build.toml"))
        (map (file: [
          file
          (builtins.hashFile "sha256" (project.path + "/${file}"))
        ]) (packageFiles ++ (if noarch then [ ] else compiled)))
      ]
    )
  );
  backendName = if noarch then "" else "${row.backend}_";
  namespace = "_${pythonName}_${backendName}${digest}";

  # Bindings that name TORCH_EXTENSION_NAME only inside the registration macros get their namespace at link time.
  macros =
    map (m: "${m}(TORCH_EXTENSION_NAME") [
      "TORCH_LIBRARY_EXPAND"
      "TORCH_LIBRARY_IMPL_EXPAND"
      "STABLE_TORCH_LIBRARY_EXPAND"
      "STABLE_TORCH_LIBRARY_IMPL_EXPAND"
      "REGISTER_EXTENSION"
    ];
  # PyTorch 2.9 has the stable registration under other names.
  macrosFit = row.stable == null || builtins.compareVersions row.stable "2.10" >= 0;
  torchFiles =
    project.torch.src or [ ] ++ builtins.concatMap (s: if builtins.elem "torch" s.depends then s.src else [ ]) sections;
  bakes =
    file:
    util.hasInfix "TORCH_EXTENSION_NAME" (
      builtins.replaceStrings macros (map (_: "") macros) (builtins.readFile (project.path + "/${file}"))
    );
  atLink = macrosFit && !(builtins.any bakes torchFiles);

  object =
    section: unit:
    "${compile {
      inherit
        project
        row
        unit
        section
        ;
      namespace = {
        inherit atLink;
        token = if atLink then "kbuild_extension" else namespace;
      };
    }}";
  objects =
    map (object null) (project.units project.torch.src)
    ++ builtins.concatMap (section: map (object section) (project.units section.src)) sections;

  library = link {
    name = util.safeName "${general.name}-${row.variant}-library";
    inherit row objects namespace;
  };
in
step {
  name = util.safeName "${general.name}-${row.variant}";
  step = ./steps/assemble.py;
  # Just the modules that write metadata.json, so that an edit of the command line rebuilds nothing.
  modules = [
    (builtins.path {
      name = "kbuild-metadata";
      path = dirOf package;
      filter =
        file: type:
        builtins.elem (toString file) (
          [ (toString package) ]
          ++ map (name: toString (package + "/${name}")) [
            "__init__.py"
            "errors.py"
            "metadata.py"
          ]
        );
    })
  ];
  inputs = {
    inherit namespace noarch;
    files = "${project.sourceTree "package" packageFiles}/torch-ext/${pythonName}";
    library = if noarch then null else "${library}";
    metadata = {
      inherit (general) name license version;
      id = "${namespace}_${builtins.replaceStrings [ "-" ] [ "_" ] row.variant}";
      upstream = general.upstream or null;
      source = general.source or null;
      python_depends = (general.python-depends or [ ]) ++ (general.${row.backend}.python-depends or [ ]);
      kernel_depends = (general.kernel-depends or [ ]) ++ (general.${row.backend}.kernel-depends or [ ]);
      backend = row.backend;
      archs = if row.backend == "cuda" && !noarch then
        builtins.sort (a: b: builtins.compareVersions a b < 0) (util.unique (builtins.concatLists (builtins.attrValues row.capabilities)))
      else
        null;
      inherit provenance;
    };
  };
}
