# Object files -> the kernel's library, linked against stubs only, stripped.
{
  host,
  step,
  stubs,
  toolkit,
  ...
}:
{
  name,
  row,
  objects,
  namespace,
}:
step {
  inherit name;
  step = ./steps/link.py;
  inputs = {
    inherit objects namespace;
    stubs = [ "${stubs.torch row.torch}" ];
    runtime = "${stubs.runtime}";
    cudart = if row.backend == "cuda" then "${(toolkit row.compute).root}/lib" else null;
  };
}
