"""One file per script, on both servers, with the whole keyspace compared before and after."""
