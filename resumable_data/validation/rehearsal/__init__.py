"""A rehearsal: a disposable job on the ranks that a run is to move to, in stages, each of which stops the rest.

`files`, `untouched` and `arguments` do not import torch: the files are checked before it is there.
"""
