# All variants of a project in one folder, each under its name.
{ step, util, ... }:
project: variants:
step {
  name = util.safeName "${project.general.name}-bundle";
  step = ./steps/bundle.py;
  inputs.variants = builtins.mapAttrs (_: drv: "${drv}") variants;
}
