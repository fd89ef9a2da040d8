"""Systems that learn labelled classes stage by stage, one small file each."""
