"""The paper's networks: token encoders, grid encoders, processors, decoders and likelihoods."""
