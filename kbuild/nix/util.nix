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

  dirOf' = path: if hasInfix "/" path then builtins.dirOf path else ".";
}
