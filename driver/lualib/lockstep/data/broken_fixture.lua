-- A map whose module cannot be loaded.

error("this module is broken")
