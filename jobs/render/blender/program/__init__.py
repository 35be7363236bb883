"""What runs inside Blender's own Python: standard library and ``bpy`` only, never the farm, never torch.

The child is started as ``python child.py`` by the interpreter of a ``bpy`` environment, or as
``blender --background --factory-startup --python child.py``.
"""
