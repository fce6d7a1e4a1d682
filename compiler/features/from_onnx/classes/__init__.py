"""Classes of values in the place of texts and numbers: those that a graph treats alike (docs/decisions/86).

`value_classes` says what a class is, `feature_uses` which of them a graph tells apart; `class_graph` puts them in the
place of the values, and `class_columns` with `class_bags` finds by evaluation what a row of classes leads to.
"""
