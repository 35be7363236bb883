"""The farm's own tiny text-to-video model: generator of clips, judge, training and obedience test.

A toy by design: it knows six colours, three shapes and four directions, and exists so that tests and the
demo run a real diffusion pipeline with real (trained) weights on two CPU cores. See the model card in
`weights/README.md`.
"""
