"""The sitecustomize of tasks, which agents copy to their hosts; gridtf itself does not import it."""
