# All variants of a project in one folder, each under its name.
{ step, ... }:
project: variants:
step {
  name = "${project.general.name}-bundle";
  step = ./steps/bundle.py;
  inputs.variants = builtins.mapAttrs (_: drv: "${drv}") variants;
}
