"""What is probed at load: which forwards give a row the same bits."""
