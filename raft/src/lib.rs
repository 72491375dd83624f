pub mod disk;
pub mod journal;
pub mod seams;
pub mod statelog;
