"""The review page: look at discovered classes in a browser, and name, merge, split or reject them."""
