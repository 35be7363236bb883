"""The production engine of the `render` kind: Blender, always in a child process of its own."""
