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
  atLeast = a: b: builtins.compareVersions a b >= 0;

  stableFor =
    backend:
    let
      setting = framework.torch.stable-abi or null;
    in
    if builtins.isAttrs setting then setting.${backend} or null else setting;

  toolkitServes =
    compute:
    compute == "cpu"
    || (
      matrix.toolkits.${compute} ? trees
      && atLeast matrix.toolkits.${compute}.cuda (general.cuda.minver or "0")
      && atLeast (general.cuda.maxver or "999") matrix.toolkits.${compute}.cuda
    );

  bare = capability: builtins.replaceStrings [ "+PTX" ] [ "" ] capability;
  cudaSections = builtins.filter (s: s.backend == "cuda") sections;
  capabilitiesFor =
    compute: section:
    let
      cuda = matrix.toolkits.${compute}.cuda;
      declared = section.cuda-capabilities or archs.default.${cuda};
    in
    if (section.cuda-minver or "0") != "0" && !(atLeast cuda section.cuda-minver) then
      [ ]
    else
      builtins.filter (c: builtins.elem (bare c) archs.toolkits.${cuda}) declared;
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

  served =
    row:
    builtins.elem (backendOf row.compute) general.backends
    && toolkitServes row.compute
    && noneEmpty (capabilities row.compute);

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

  # The oldest release at or above the stable-ABI version that PyTorch publishes for this compute supplies the headers.
  stable = builtins.concatMap (
    compute:
    let
      version = stableFor (backendOf compute);
      candidates = builtins.filter (row: row.compute == compute && atLeast row.torch version) matrix.rows;
      oldest = builtins.head (builtins.sort (a: b: builtins.compareVersions a.torch b.torch < 0) candidates);
    in
    if version == null || candidates == [ ] || !(served oldest) then
      [ ]
    else
      [ (archRow oldest version "torch-stable-abi${plain version}-${compute}-x86_64-linux") ]
  ) (util.unique (map (row: row.compute) matrix.rows));

  noarch = map (backend: {
    inherit backend;
    variant = "torch-${backend}";
    torch = null;
    stable = null;
    compute = null;
    capabilities = { };
  }) general.backends;
in
if framework ? noarch then noarch else ordinary ++ stable
