"""The star as child processes of one command: started, watched, restarted, stopped."""
