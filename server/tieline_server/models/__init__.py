"""The models that are served: which engine a name means, and the file of the packaged one."""
