"""Generated code over the bytes of texts: tokens, decimal numbers both ways, letters, and their fingerprints.

Nothing outside of [begin, begin + size) of a text is read, whatever the bytes are. Only `compiler.features.kernel`
imports this folder.
"""
