raise RuntimeError("the jobs of this app cannot be imported")
