# The kept tree of one pinned wheel. kbuild puts it into the store before the build; its hash is fixed, so a valid
# path is never built again and a wrong byte cannot get in.
{
  lock,
  system,
  ...
}:
key:
let
  pin = lock.trees.${key} or (throw "kbuild: the toolchain lock has no tree '${key}'");
in
derivation {
  name = pin.store_name;
  inherit system;
  builder = "/bin/sh";
  args = [
    "-c"
    "echo 'kbuild: the pinned tree ${pin.store_name} is not in this store. Run: kbuild lock fetch' >&2; exit 1"
  ];
  outputHashMode = "recursive";
  outputHashAlgo = "sha256";
  outputHash = pin.nar_hash;
}
