

pub mod disk;
pub mod seams;
