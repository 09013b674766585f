# The variants of a project: matrix rows filtered by build.toml. The twin of kbuild/variants.py, which also says why
# a row is left out; a contract test holds the two together.
#
# Each row: { variant; compute; backend; torch (the release whose headers and symbols serve it, or null); stable;
#             capabilities = section id -> list; }
{
  matrix,
  archs,
  util,
  ...
}:
project:
let
  inherit (project) general sections framework;

  backendOf = compute: if compute == "cpu" then "cpu" else "cuda";
  plain = builtins.replaceStrings [ "." ] [ "" ];
  # Versions count by major and minor, as in kbuild/variants.py.
  atLeast = a: b: builtins.compareVersions (util.majorMinor a) (util.majorMinor b) >= 0;

  stableFor =
    backend:
    let
      setting = framework.torch.stable-abi or null;
    in
    if setting == null then
      null
    else if builtins.isAttrs setting then
      (if setting ? ${backend} then util.majorMinor setting.${backend} else null)
    else
      util.majorMinor setting;

  toolkitServes =
    compute:
    compute == "cpu"
    || (
      matrix.toolkits.${compute} ? trees
      && atLeast matrix.toolkits.${compute}.cuda (general.cuda.minver or "0")
      && atLeast (general.cuda.maxver or "999") matrix.toolkits.${compute}.cuda
    );

  sectionsFor = backend: builtins.filter (s: s.backend == backend) sections;

  bare = capability: builtins.replaceStrings [ "+PTX" ] [ "" ] capability;
  cudaSections = sectionsFor "cuda";
  capabilitiesFor =
    compute: section:
    let
      cuda = matrix.toolkits.${compute}.cuda;
    in
    builtins.filter (c: builtins.elem (bare c) archs.toolkits.${cuda}) (
      section.cuda-capabilities or archs.default.${cuda}
    );
  activeSections = compute: builtins.filter (s: atLeast matrix.toolkits.${compute}.cuda (s.cuda-minver or "0")) cudaSections;
  capabilities =
    compute:
    if compute == "cpu" then
      { }
    else
      builtins.listToAttrs (
        map (s: {
          name = s.id;
          value = capabilitiesFor compute s;
        }) (activeSections compute)
      );
  noneEmpty = set: builtins.all (list: list != [ ]) (builtins.attrValues set);

  archRow =
    row: stable: variant:
    {
      inherit variant stable;
      inherit (row) torch compute;
      backend = backendOf row.compute;
      capabilities = capabilities row.compute;
    };

  # Whether everything that the sections depend on is at hand; of the toolchain only PyTorch is.
  dependable =
    row:
    builtins.all (s: builtins.all (d: d == "torch") s.depends) (
      if row.compute == "cpu" then sectionsFor "cpu" else activeSections row.compute
    );

  served =
    row:
    builtins.elem (backendOf row.compute) general.backends
    && sectionsFor (backendOf row.compute) != [ ]
    && toolkitServes row.compute
    && (row.compute == "cpu" || activeSections row.compute != [ ])
    && noneEmpty (capabilities row.compute)
    && dependable row;

  ordinary = builtins.concatMap (
    row:
    if
      served row
      && stableFor (backendOf row.compute) == null
      && atLeast row.torch (framework.torch.minver or "0")
      && atLeast (framework.torch.maxver or "999") row.torch
    then
      [ (archRow row null row.variant) ]
    else
      [ ]
  ) matrix.rows;

  # The oldest release that offers the ABI supplies the headers; they do not depend on the CUDA version.
  stable = builtins.concatMap (
    compute:
    let
      version = stableFor (backendOf compute);
      inBounds =
        torch:
        atLeast torch version
        && atLeast torch (framework.torch.minver or "0")
        && atLeast (framework.torch.maxver or "999") torch;
      users = builtins.filter (row: row.compute == compute && inBounds row.torch) matrix.rows;
      releases = builtins.filter (torch: atLeast torch version) (builtins.attrNames matrix.torch);
      oldest = builtins.head (builtins.sort (a: b: builtins.compareVersions a b < 0) releases);
      row = {
        inherit compute;
        torch = oldest;
      };
    in
    if version == null || users == [ ] || !(served row) then
      [ ]
    else
      [ (archRow row version "torch-stable-abi${plain version}-${compute}-x86_64-linux") ]
  ) (util.unique (map (row: row.compute) matrix.rows));

  # A backend without kernel sections gets a build of Python files only.
  noarch = map (backend: {
    inherit backend;
    variant = "torch-${if backend == "cann" then "npu" else backend}";
    torch = null;
    stable = null;
    compute = null;
    capabilities = { };
  }) (builtins.filter (backend: sectionsFor backend == [ ]) general.backends);
in
(if framework ? torch then ordinary ++ stable else [ ]) ++ noarch
