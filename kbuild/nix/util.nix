# The handful of list and string functions that builtins lacks.
rec {
  hasSuffix =
    suffix: text:
    let
      n = builtins.stringLength suffix;
      length = builtins.stringLength text;
    in
    length >= n && builtins.substring (length - n) n text == suffix;

  hasInfix = infix: text: builtins.replaceStrings [ infix ] [ "" ] text != text;

  unique = builtins.foldl' (seen: x: if builtins.elem x seen then seen else seen ++ [ x ]) [ ];

  genAttrs =
    names: f:
    builtins.listToAttrs (
      map (name: {
        inherit name;
        value = f name;
      }) names
    );

  # A name that a store path may have: other characters become dashes, and a long one loses its middle.
  safeName =
    text:
    let
      parts = builtins.filter builtins.isString (builtins.split "[^A-Za-z0-9+._?=-]+" text);
      name = builtins.concatStringsSep "-" parts;
      length = builtins.stringLength name;
    in
    if length <= 120 then
      name
    else
      "${builtins.substring 0 60 name}-${builtins.substring (length - 59) 59 name}";

  # "./a//b/../c.h" -> "a/c.h"
  normalise =
    path:
    builtins.concatStringsSep "/" (
      builtins.foldl' (
        done: part:
        if part == "" || part == "." then
          done
        else if part == ".." && done != [ ] then
          init done
        else
          done ++ [ part ]
      ) [ ] (builtins.filter builtins.isString (builtins.split "/" path))
    );

  init = list: builtins.genList (builtins.elemAt list) (builtins.length list - 1);

  # Major and minor, all that counts of a version here: "13" -> "13.0", "2.13.1" -> "2.13".
  majorMinor =
    version:
    let
      parts = builtins.filter builtins.isString (builtins.split "[.]" version);
      minor = if builtins.length parts > 1 then builtins.elemAt parts 1 else "0";
    in
    "${builtins.head parts}.${minor}";

  dirOf' = path: if hasInfix "/" path then builtins.dirOf path else ".";
}
