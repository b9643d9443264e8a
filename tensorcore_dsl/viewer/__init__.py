"""Page that shows a kernel's Python beside its IR, PTX and SASS, with an emulated run."""
