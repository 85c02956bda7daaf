"""Writers of models in other formats, which read the plain structure of `jsparse.predictor`."""
