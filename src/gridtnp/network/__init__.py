"""The paper: tokens, grid encoders, processors and decoders, and the networks built from them."""
