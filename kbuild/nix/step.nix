# Run one of steps/*.py in a derivation: the host's Python is the builder, its inputs arrive as JSON
# (`.attrs.json`, structured attributes), and the host toolchain's identity is part of every hash.
{
  host,
  system,
  ...
}:
{
  name,
  step,
  modules ? [ ],
  inputs,
}:
derivation {
  inherit name system;
  builder = host.python;
  args = [
    "-IB"
    "${step}"
  ];
  __structuredAttrs = true;
  inherit inputs;
  modules = map (m: "${m}") modules;
  host = {
    inherit (host) path identity;
  };
}
