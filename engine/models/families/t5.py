"""T5, an encoder-decoder."""

from specchat.engine.models.family import Family

FAMILIES = (Family(types=("t5",), overflows=True, backend="specchat.engine.research.encoder_decoder", packed=False),)
